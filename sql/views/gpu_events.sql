-- gpu_events: work on a GPU.
--
-- One row is one kernel, copy or memset, as recorded. Annotations that the profiler projects on the GPU's tracks are
-- no GPU work; they are in `annotations`.
-- Grids are in blocks: hipExtModuleLaunchKernel records work-items, which are divided by the block here; the first
-- rocprofiler-sdk back ends of PyTorch wrote block and grid (in work-items) in each other's place, which shows in
-- "blocks" of more than 1024 work-items and is undone here. What was recorded is in `args`.
--
-- Columns:
--   run (text): name of the training run
--   collector (text): what recorded the trace, such as 'pytorch'
--   rank (number): rank of the process in the training job, NULL when not known
--   part (number): which trace of this run, collector and rank, from 0
--   trace_id (text): short hash of the trace's content
--   event_id (number): ordinal of the event in the trace file, from 0
--   kind (text): 'kernel', 'memcpy' or 'memset', as recorded
--   name (text): name of the kernel or copy
--   class (text): 'computation', 'communication' or 'memcpy', see the macro kernel_class
--   device (number): index of the GPU as the collector numbers it
--   stream (number): stream or hardware queue on the device
--   start_ns (ns): start on the trace's own clock
--   dur_ns (ns): duration
--   end_ns (ns): end, start_ns + dur_ns
--   correlation_id (number): shared with the runtime call that launched it; 0 and -1 mean none
--   external_id (number): id of the operator that launched it, as the profiler gave it
--   grid_x (blocks): grid of the launch
--   grid_y (blocks): grid of the launch
--   grid_z (blocks): grid of the launch
--   block_x (threads): block of the launch
--   block_y (threads): block of the launch
--   block_z (threads): block of the launch
--   bytes (bytes): size of a copy or memset
--   defect (text): NULL, or what is wrong: 'incomplete', 'negative_duration', 'impossible_timestamp'
--   args (JSON): all arguments as recorded
WITH work_item_launches AS (
    SELECT trace_id, run, correlation_id, true AS in_work_items
    FROM raw.runtime_calls
    WHERE name = 'hipExtModuleLaunchKernel'
        AND correlation_id > 0
    GROUP BY trace_id, run, correlation_id
),
swapped_traces AS (
    SELECT trace_id, run, bool_or(block_x * block_y * block_z > 1024) AS is_swapped
    FROM raw.gpu_events
    GROUP BY trace_id, run
),
classed AS (
    -- before the joins, where names still come as dictionaries: the rule runs once per name, not once per event
    SELECT
        run, collector, rank, part, trace_id, event_id, kind, name, kernel_class(kind, name) AS class,
        device, stream, start_ns, dur_ns, correlation_id, external_id,
        grid_x, grid_y, grid_z, block_x, block_y, block_z, bytes, defect, args
    FROM raw.gpu_events
),
geometry AS (
    SELECT
        e.*,
        CASE WHEN is_swapped THEN grid_x ELSE block_x END AS threads_x,
        CASE WHEN is_swapped THEN grid_y ELSE block_y END AS threads_y,
        CASE WHEN is_swapped THEN grid_z ELSE block_z END AS threads_z,
        CASE WHEN is_swapped THEN block_x ELSE grid_x END AS extent_x,
        CASE WHEN is_swapped THEN block_y ELSE grid_y END AS extent_y,
        CASE WHEN is_swapped THEN block_z ELSE grid_z END AS extent_z,
        COALESCE(is_swapped OR in_work_items, false) AS in_work_items
    FROM classed AS e
    LEFT JOIN work_item_launches USING (trace_id, run, correlation_id)
    LEFT JOIN swapped_traces USING (trace_id, run)
)
SELECT
    run, collector, rank, part, trace_id, event_id, kind, name, class,
    device, stream, start_ns, dur_ns, start_ns + dur_ns AS end_ns,
    correlation_id, external_id,
    -- a block can be larger than the rest of the grid: divide up
    CASE WHEN in_work_items THEN (extent_x + threads_x - 1) // threads_x ELSE extent_x END AS grid_x,
    CASE WHEN in_work_items THEN (extent_y + threads_y - 1) // threads_y ELSE extent_y END AS grid_y,
    CASE WHEN in_work_items THEN (extent_z + threads_z - 1) // threads_z ELSE extent_z END AS grid_z,
    threads_x AS block_x, threads_y AS block_y, threads_z AS block_z,
    bytes, defect, args
FROM geometry
