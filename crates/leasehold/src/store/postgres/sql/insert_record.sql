INSERT INTO records (kind, key, version, expires_at_ms, body)
VALUES (:kind, :key, 1, :expires_at_ms, :body)
ON CONFLICT (kind, key) DO NOTHING
RETURNING version
