SELECT id FROM runs
WHERE right(replace(id::text, '-', ''), length(:suffix)) = :suffix
ORDER BY id DESC
LIMIT 2
