SELECT max(version) AS version FROM refinery_schema_history
