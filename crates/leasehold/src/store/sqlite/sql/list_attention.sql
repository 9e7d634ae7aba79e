SELECT id, agent, owner, team, state, reason, epoch, holder, fence_tool, cancel_requested, duplicates, contradictions, attribution, created_at_ms, since_ms
FROM runs
WHERE state IN ('waiting_for_approval', 'waiting_for_input', 'dead')
  AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
  AND (:agent IS NULL OR agent = :agent)
  AND (:owner IS NULL OR owner = :owner)
  AND (:reason IS NULL OR reason = :reason)
  AND (:since_ms IS NULL OR created_at_ms >= :since_ms)
  AND (:see_owner IS NULL OR owner = :see_owner OR initiator = :see_initiator
      OR team IN (SELECT value FROM json_each(:see_teams)))
  AND (NOT :flagged_only OR duplicates > 0 OR contradictions > 0)
  AND id < :before
ORDER BY id DESC
LIMIT :limit
