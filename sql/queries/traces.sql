-- traces: what is in the store.
--
-- One row is one trace file of one rank. Works without GPU events.
--
-- Example: traceanalyzer query STORE traces
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   rank_source (text): who said the rank
--   world_size (number): ranks of the training job, NULL when the trace does not say
--   device_name (text): name of the GPU
--   host (text): host name, NULL when the trace does not say
--   pid (number): process whose host side was recorded
--   clock_domain (text): what times count from: 'epoch' or 'relative'
--   complete (boolean): the file was whole
--   bytes (bytes): size of the file
--   events_read (count): events in the file
--   events_stored (count): events in the store
--   events_rejected (count): events that could not be stored
--   events_left_out (count): events that were not stored because the user said so (--no-python)
--   repairs (count): places in the file that were damaged and could be repaired
--   profiler (text): versions and switches of the profiler
--   path (text): the file when it was ingested
--   trace_id (text): short hash of the trace's content
SELECT
    run, collector, rank, part, rank_source, world_size, device_name, host, pid, clock_domain, complete, bytes,
    events_read, events_stored, events_rejected, events_left_out, repairs, profiler, path, trace_id
FROM traces
ORDER BY run, collector, rank, part
