SELECT h.id, h.epoch, h.lease_id, runs.epoch = h.epoch AND runs.lease_id IS h.lease_id, runs.sequence, runs.cancel_requested
FROM (
    SELECT value ->> 0 AS id, value ->> 1 AS epoch, value ->> 2 AS lease_id FROM json_each(:held)
) AS h
JOIN runs ON runs.id = h.id
