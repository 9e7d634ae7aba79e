SELECT id, request_hash FROM runs WHERE request_scope = :scope AND request_key = :key
