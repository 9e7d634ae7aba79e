-- Extends what is held, and says of each right that has a row what it found. A row that somebody else has locked is passed over, so
-- that it holds up no other: it is held as far as is known, and not renewed.
WITH held AS (
    SELECT * FROM unnest(:ids::uuid[], :epochs::bigint[], :lease_ids::uuid[]) AS h (id, epoch, lease_id)
), locked AS MATERIALIZED (
    SELECT runs.id, runs.epoch, runs.lease_id, runs.sequence, runs.cancel_requested
    FROM runs JOIN held ON held.id = runs.id AND held.epoch = runs.epoch AND held.lease_id = runs.lease_id
    FOR NO KEY UPDATE OF runs SKIP LOCKED
), renewed AS (
    UPDATE runs SET
        lease_clock = :clock,
        lease_expires_ns = coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint) + :ttl_ns
    FROM locked
    WHERE runs.id = locked.id AND runs.epoch = locked.epoch AND runs.lease_id = locked.lease_id
    RETURNING runs.id, runs.epoch, runs.lease_id
)
SELECT
    held.id, held.epoch, held.lease_id,
    runs.epoch = held.epoch AND runs.lease_id IS NOT DISTINCT FROM held.lease_id AS held,
    renewed.id IS NOT NULL AS renewed,
    coalesce(locked.sequence, runs.sequence) AS sequence,
    coalesce(locked.cancel_requested, runs.cancel_requested) AS cancel_requested
FROM held
JOIN runs ON runs.id = held.id
LEFT JOIN locked ON locked.id = held.id AND locked.epoch = held.epoch AND locked.lease_id = held.lease_id
LEFT JOIN renewed ON renewed.id = held.id AND renewed.epoch = held.epoch AND renewed.lease_id = held.lease_id
