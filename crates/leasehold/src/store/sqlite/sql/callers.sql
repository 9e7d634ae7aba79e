SELECT r.id FROM callers AS c JOIN runs AS r ON r.id = c.run_id
WHERE c.tool = :tool
  AND c.at_ms >= :since_ms
  AND (:see_owner IS NULL OR r.owner = :see_owner OR r.initiator = :see_initiator
      OR r.team IN (SELECT value FROM json_each(:see_teams)))
ORDER BY c.at_ms DESC, c.run_id DESC
LIMIT :limit
