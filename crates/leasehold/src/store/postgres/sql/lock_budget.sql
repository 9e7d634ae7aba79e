-- Held until the transaction ends: who charges the same budget waits, and then sees what was charged.
SELECT pg_advisory_xact_lock(hashtextextended(:budget, 7563))
