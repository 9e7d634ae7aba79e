SELECT epoch, lease_id, lease_clock, lease_expires_ns, sequence FROM runs WHERE id = :id
