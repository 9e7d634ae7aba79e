SELECT epoch, lease_id, lease_clock, lease_expires_ns FROM runs WHERE id = :id
