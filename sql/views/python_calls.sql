-- python_calls: Python frames and nn.Module calls (recorded with_stack).
--
-- One row is one call.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   name (text): file, line and function, or 'nn.Module: Linear_3'
--   module (text): the module ('Linear_3') when the call is one of an nn.Module
--   pid (number): process id, NULL when the trace has no number there
--   tid (number): thread id, NULL when the trace has no number there
--   pid_text (text): what the trace says where pid is NULL
--   tid_text (text): what the trace says where tid is NULL
--   start_ns (ns): start on the trace's own clock
--   dur_ns (ns): duration
--   end_ns (ns): end, start_ns + dur_ns
--   args (JSON): all arguments as recorded
SELECT
    run, collector, rank, part, trace_id, event_id,
    name, CASE WHEN starts_with(name, 'nn.Module: ') THEN substr(name, 12) END AS module,
    TRY_CAST(pid AS BIGINT) AS pid, TRY_CAST(tid AS BIGINT) AS tid,
    CASE WHEN TRY_CAST(pid AS BIGINT) IS NULL THEN pid END AS pid_text,
    CASE WHEN TRY_CAST(tid AS BIGINT) IS NULL THEN tid END AS tid_text,
    start_ns, dur_ns, start_ns + dur_ns AS end_ns,
    args
FROM raw.python_calls
