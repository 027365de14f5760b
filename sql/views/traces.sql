-- traces: the ingested trace files.
--
-- One row is one file of one rank.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   world_size (number): ranks of the training job, NULL when the trace does not say
--   rank_source (text): who said the rank: 'distributedInfo', 'file name', 'folder name', '--rank', '--rank-map', 'unknown'
--   path (text): the file when it was ingested
--   bytes (bytes): size of that file
--   host (text): host name, NULL when the trace does not say
--   pid (number): process whose host side was recorded
--   device_name (text): name of the GPU
--   profiler (text): versions and switches of the profiler
--   clock_base_ns (ns): add this to start_ns for the time since the epoch of clock_domain
--   clock_domain (text): 'epoch' (Unix time) or 'relative' (zero unknown)
--   complete (boolean): the file was whole
--   events_read (count): events in the file
--   events_stored (count): events in the store; read = stored + rejected + left out
--   events_rejected (count): events that could not be stored
--   events_left_out (count): events that were not stored because the user said so (--no-python)
--   repairs (count): places in the file that were damaged and could be repaired
--   warnings (text): what a reader of the numbers should know
SELECT
    run, collector, rank, part, trace_id, world_size, rank_source, path, bytes, host, pid, device_name, profiler,
    clock_base_ns, clock_domain, complete, events_read, events_stored, events_rejected, events_left_out, repairs, warnings
FROM raw.traces
