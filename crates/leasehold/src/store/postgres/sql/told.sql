UPDATE runs SET told_ms = :finished_at_ms WHERE id = :id AND finished_at_ms = :finished_at_ms
