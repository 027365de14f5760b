-- timeline_adds_up: computation, exposed communication, exposed copies and idle time are the window.
--
-- One row is one device whose parts do not add up, or whose hidden and exposed parts contradict each other.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank
--   detail (text): what contradicts what
SELECT
    run, collector, rank, part,
    format(
        'device {}: {} + {} + {} + {} ns are not {} ns',
        device, computation_ns, COALESCE(exposed_communication_ns, 0), exposed_memcpy_ns, idle_ns, window_ns
    ) AS detail
FROM queries.timeline
WHERE computation_ns + COALESCE(exposed_communication_ns, 0) + exposed_memcpy_ns + idle_ns <> window_ns
    OR busy_ns + idle_ns <> window_ns
    OR exposed_communication_ns > communication_ns
    OR exposed_memcpy_ns > memcpy_ns
    OR least(computation_ns, exposed_communication_ns, exposed_memcpy_ns, idle_ns, micro_idle_ns) < 0
    OR micro_idle_ns > idle_ns
ORDER BY run, collector, rank, part, detail
