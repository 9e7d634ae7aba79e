INSERT INTO workers (name, lease_clock, expires_ns, executes, serves)
VALUES (
    :name, :clock, coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint) + :ttl_ns, :executes, :serves
)
ON CONFLICT (name) DO UPDATE SET
    lease_clock = excluded.lease_clock, expires_ns = excluded.expires_ns, executes = excluded.executes, serves = excluded.serves
