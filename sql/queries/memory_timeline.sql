-- memory_timeline: memory of the allocator over time.
--
-- One row is one span of time of one device of one trace in which memory was allocated or freed. The time from the first
-- to the last such event is divided into `points` equal spans; with points=0, one row is one event.
-- Works without GPU events.
--
-- Parameters:
--   points (integer: 0..1000000) = 50: spans of time; 0 for one row per event
--   device_type (text: gpu|cpu|all) = gpu: only memory of this kind of device
-- Empty: not recorded: PyTorch records allocations only when it is told to profile memory (profile_memory=True).
-- Example: traceanalyzer query STORE memory_timeline -p points=20
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   device_type (text): 'cpu', or 'gpu' for every other kind
--   device (number): index of the device, -1 for the host
--   start_ns (ns): first event of the span, on the trace's own clock
--   end_ns (ns): last event of the span
--   allocated_bytes (bytes): allocated after the last event of the span
--   reserved_bytes (bytes): held by the allocator after the last event of the span
--   peak_allocated_bytes (bytes): most that was allocated in the span
--   peak_reserved_bytes (bytes): most that was held in the span
--   allocations (count, summed): allocations in the span
--   frees (count, summed): frees in the span
WITH events AS (
    SELECT
        run, collector, rank, part, event_id, start_ns,
        -- c10's numbers of device types: 0 is the host
        CASE WHEN TRY_CAST(args ->> 'Device Type' AS BIGINT) = 0 THEN 'cpu' ELSE 'gpu' END AS device_type,
        TRY_CAST(args ->> 'Device Id' AS BIGINT) AS device,
        TRY_CAST(args ->> 'Bytes' AS BIGINT) AS change_bytes,
        TRY_CAST(args ->> 'Total Allocated' AS BIGINT) AS allocated_bytes,
        TRY_CAST(args ->> 'Total Reserved' AS BIGINT) AS reserved_bytes
    FROM instants
    WHERE name = '[memory]'
        AND start_ns IS NOT NULL
),
chosen AS (
    SELECT
        run, collector, rank, part, event_id, start_ns, device_type, device, change_bytes, allocated_bytes,
        reserved_bytes,
        CASE
            WHEN $points = 0 THEN row_number() OVER of_device
            ELSE (start_ns - min(start_ns) OVER whole) * $points::HUGEINT
                // (max(start_ns) OVER whole - min(start_ns) OVER whole + 1)
        END AS span
    FROM events
    WHERE $device_type IN ('all', device_type)
    WINDOW
        whole AS (PARTITION BY run, collector, rank, part),
        of_device AS (PARTITION BY run, collector, rank, part, device_type, device ORDER BY start_ns, event_id)
)
SELECT
    run, collector, rank, part, device_type, device,
    min(start_ns) AS start_ns,
    max(start_ns) AS end_ns,
    arg_max(allocated_bytes, (start_ns, event_id)) AS allocated_bytes,
    arg_max(reserved_bytes, (start_ns, event_id)) AS reserved_bytes,
    max(allocated_bytes) AS peak_allocated_bytes,
    max(reserved_bytes) AS peak_reserved_bytes,
    count(*) FILTER (change_bytes > 0) AS allocations,
    count(*) FILTER (change_bytes < 0) AS frees
FROM chosen
GROUP BY run, collector, rank, part, device_type, device, span
ORDER BY run, collector, rank, part, device_type, device, span
