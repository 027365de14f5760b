-- rejects: events that could not be stored.
--
-- One row is one event of a trace file that is damaged beyond repair.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   byte_offset (bytes): where it begins in the decompressed file
--   reason (text): why it could not be stored
--   sample (text): its beginning, with what looks like a secret masked
SELECT
    run, collector, rank, part, trace_id, event_id, byte_offset, reason, sample
FROM raw.rejects
