INSERT INTO workers (name, lease_clock, expires_ns, executes)
VALUES (:name, :clock, :expires_ns, :executes)
ON CONFLICT (name) DO UPDATE SET lease_clock = :clock, expires_ns = :expires_ns, executes = :executes
