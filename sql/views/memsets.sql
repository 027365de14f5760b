-- memsets: memsets recorded as such, with the columns of `gpu_events`.
--
-- One row is one event of kind 'memset'.
--
-- Columns: as gpu_events
SELECT
    run, collector, rank, part, trace_id, event_id, kind, name, kernel_key,
    class, category, subcategory, rule_id, tracelens_class,
    device, stream, start_ns, dur_ns, end_ns, correlation_id, external_id,
    grid_x, grid_y, grid_z, block_x, block_y, block_z, bytes, defect, clipped_dur_ns,
    is_linked, runtime_event_id, op_event_id, launch_step, execution_step, args
FROM gpu_events
WHERE kind = 'memset'
