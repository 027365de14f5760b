-- read_is_stored_and_rejected: every event that was read is in one table, in `rejects`, or left out on demand.
--
-- One row is one trace whose ledger does not add up, or whose tables hold another number of events than it says.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank
--   detail (text): what does not add up
WITH counted AS (
    SELECT run, trace_id FROM raw.gpu_events
    UNION ALL SELECT run, trace_id FROM raw.cpu_ops
    UNION ALL SELECT run, trace_id FROM raw.runtime_calls
    UNION ALL SELECT run, trace_id FROM raw.annotations
    UNION ALL SELECT run, trace_id FROM raw.python_calls
    UNION ALL SELECT run, trace_id FROM raw.instants
    UNION ALL SELECT run, trace_id FROM raw.counters
    UNION ALL SELECT run, trace_id FROM raw.flows
    UNION ALL SELECT run, trace_id FROM raw.threads
    UNION ALL SELECT run, trace_id FROM raw.other_events
),
in_tables AS (
    SELECT run, trace_id, count(*) AS rows
    FROM counted
    GROUP BY run, trace_id
),
in_rejects AS (
    SELECT run, trace_id, count(*) AS rows
    FROM raw.rejects
    GROUP BY run, trace_id
)
SELECT
    run, collector, rank, part,
    format(
        '{} read: {} stored ({} in tables), {} rejected ({} in rejects), {} left out',
        events_read, events_stored, COALESCE(i.rows, 0), events_rejected, COALESCE(r.rows, 0), events_left_out
    ) AS detail
FROM traces
LEFT JOIN in_tables AS i USING (run, trace_id)
LEFT JOIN in_rejects AS r USING (run, trace_id)
WHERE events_read <> events_stored + events_rejected + events_left_out
    OR events_stored <> COALESCE(i.rows, 0)
    OR events_rejected <> COALESCE(r.rows, 0)
ORDER BY run, collector, rank, part
