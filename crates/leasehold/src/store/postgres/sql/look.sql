SELECT
    held.id, held.epoch, held.lease_id,
    runs.epoch = held.epoch AND runs.lease_id IS NOT DISTINCT FROM held.lease_id AS held,
    false AS renewed,
    runs.sequence,
    runs.cancel_requested
FROM unnest(:ids::uuid[], :epochs::bigint[], :lease_ids::uuid[]) AS held (id, epoch, lease_id)
JOIN runs ON runs.id = held.id
