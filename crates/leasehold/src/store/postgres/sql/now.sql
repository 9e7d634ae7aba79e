SELECT coalesce(:now_ns::bigint, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint) AS now_ns
