-- Runs inside of sbatch, srun and salloc: a slow answer delays one user. Prefer it to job_submit.lua.

local selector = dofile("/etc/slurm/kernel_selector.lua")

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  if selector.unset(options["constraint"]) then
    local found = selector.constraint(options["comment"], options["partition"])
    if found then options["constraint"] = found end
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
