DELETE FROM workers WHERE lease_clock <> :clock OR expires_ns <= :now_ns
