UPDATE runs SET lease_clock = :clock, lease_expires_ns = :expires_ns
FROM (
    SELECT value ->> 0 AS id, value ->> 1 AS epoch, value ->> 2 AS lease_id FROM json_each(:held)
) AS h
WHERE runs.id = h.id AND runs.epoch = h.epoch AND runs.lease_id = h.lease_id
