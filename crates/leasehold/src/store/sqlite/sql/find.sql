SELECT id FROM runs
WHERE substr(replace(id, '-', ''), -length(:suffix)) = :suffix
ORDER BY id DESC
LIMIT 2
