-- flows: ends of flow arrows: launch to GPU work, forward to backward.
--
-- One row is one end of an arrow.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   category (text): 'ac2g' launch to GPU, 'fwdbwd' forward to backward
--   name (text): as recorded
--   phase (text): 's' start, 't' step, 'f' finish
--   flow_id (number): shared by the ends of one arrow; for ac2g the correlation id
--   flow_id_text (text): what the trace says where flow_id is NULL
--   binding (text): 'e' when a finish binds to the enclosing slice
--   pid (number): process id, NULL when the trace has no number there
--   tid (number): thread id, NULL when the trace has no number there
--   pid_text (text): what the trace says where pid is NULL
--   tid_text (text): what the trace says where tid is NULL
--   start_ns (ns): time on the trace's own clock
--   args (JSON): all arguments as recorded
SELECT
    run, collector, rank, part, trace_id, event_id,
    category, name, phase,
    TRY_CAST(id AS BIGINT) AS flow_id,
    CASE WHEN TRY_CAST(id AS BIGINT) IS NULL THEN id END AS flow_id_text,
    binding,
    TRY_CAST(pid AS BIGINT) AS pid, TRY_CAST(tid AS BIGINT) AS tid,
    CASE WHEN TRY_CAST(pid AS BIGINT) IS NULL THEN pid END AS pid_text,
    CASE WHEN TRY_CAST(tid AS BIGINT) IS NULL THEN tid END AS tid_text,
    start_ns, args
FROM raw.flows
