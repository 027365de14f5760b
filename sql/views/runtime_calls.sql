-- runtime_calls: HIP and CUDA API calls.
--
-- One row is one call on a host thread.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   api (text): the interface, as recorded: 'cuda_runtime' (HIP calls of PyTorch too), 'cuda_driver', ...
--   name (text): name of the function
--   pid (number): process id, NULL when the trace has no number there
--   tid (number): thread id, NULL when the trace has no number there
--   pid_text (text): what the trace says where pid is NULL
--   tid_text (text): what the trace says where tid is NULL
--   start_ns (ns): start on the trace's own clock
--   dur_ns (ns): duration
--   end_ns (ns): end, start_ns + dur_ns
--   op_event_id (number): event_id of the innermost operator around it, NULL when there is none
--   correlation_id (number): shared with the GPU work that the call launched; 0 and -1 mean none
--   external_id (number): id that ties an operator to what it launched, as the profiler gave it
--   args (JSON): all arguments as recorded
SELECT
    run, collector, rank, part, trace_id, event_id,
    api, name,
    TRY_CAST(pid AS BIGINT) AS pid, TRY_CAST(tid AS BIGINT) AS tid,
    CASE WHEN TRY_CAST(pid AS BIGINT) IS NULL THEN pid END AS pid_text,
    CASE WHEN TRY_CAST(tid AS BIGINT) IS NULL THEN tid END AS tid_text,
    start_ns, dur_ns, start_ns + dur_ns AS end_ns,
    op_event_id, correlation_id, external_id, args
FROM raw.runtime_calls
LEFT JOIN derived.host_tree USING (run, trace_id, event_id)
