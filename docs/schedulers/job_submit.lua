-- Runs inside of slurmctld with its locks held: every submission waits for the answer, half a second at
-- most. Users cannot go around it, as they can around cli_filter.lua.

local selector = dofile("/etc/slurm/kernel_selector.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
  if selector.unset(job_desc.features) then
    local found = selector.constraint(job_desc.comment, job_desc.partition)
    if found then job_desc.features = found end
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
