INSERT INTO workers (name, lease_clock, expires_ns, executes, serves)
VALUES (:name, :clock, :expires_ns, :executes, :serves)
ON CONFLICT (name) DO UPDATE SET lease_clock = :clock, expires_ns = :expires_ns, executes = :executes, serves = :serves
