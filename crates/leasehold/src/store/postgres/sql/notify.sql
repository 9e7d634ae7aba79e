-- A hint is worth no flush: the setting ends with this statement.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(:channel, :payload)
