DELETE FROM records WHERE kind = :kind AND key = :key AND version = :version
