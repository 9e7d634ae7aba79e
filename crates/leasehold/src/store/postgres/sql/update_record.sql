UPDATE records SET version = version + 1, expires_at_ms = :expires_at_ms, body = :body
WHERE kind = :kind AND key = :key AND version = :version
RETURNING version
