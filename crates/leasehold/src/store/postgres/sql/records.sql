SELECT kind, key, version, expires_at_ms, body FROM records
WHERE kind = :kind AND key > :after
ORDER BY key
LIMIT :limit
