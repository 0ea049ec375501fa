-- Runs inside of sbatch, srun and salloc: a slow answer delays one user. Prefer it to job_submit.lua.

local selector = dofile("/etc/slurm/kernel_selector.lua")

-- Options that do not say which nodes will do, or how many.
local OF_NO_NODE = {}
for name in ([[account acctg-freq argv array begin chdir comment constraint deadline delay-boot dependency error
  export export-file get-user-env gid hold ignore-pbs immediate input job-name kill-on-invalid-dep label
  mail-type mail-user mpi nice no-bell no-kill no-requeue no-shell open-mode output parsable partition priority
  profile propagate pty qos quiet requeue signal test-only time time-min uid umask unbuffered verbose wait
  wckey wrap]]):gmatch("%S+") do OF_NO_NODE[name] = true end
-- Those that ask for a size, by what selector.demand calls it. A job with an option that is in neither list is
-- left alone; so is what srun starts within a job, which has `jobid`.
local SIZES = {
  ["nodes"] = "nodes", ["ntasks"] = "tasks", ["ntasks-per-node"] = "tasks_per_node",
  ["cpus-per-task"] = "cpus", ["mem"] = "memory",
  ["gres"] = "gpus", ["gpus"] = "gpus", ["gpus-per-node"] = "gpus", ["gpus-per-task"] = "gpus",
}

-- The names of the options that the user gave: the keys of Slurm's JSON, in which texts have no quotes once
-- the escaped ones are gone.
local function given(options)
  local names = {}
  for text, colon in slurm.json_cli_options(options):gsub("\\.", ""):gmatch('"([^"]*)"(:?)') do
    if colon == ":" then names[text] = options[text] or "" end
  end
  return names
end

local function request(options)
  local found = { gpus = {} }
  for name, value in pairs(given(options)) do
    if SIZES[name] == "gpus" then
      table.insert(found.gpus, name == "gres" and value or "gpu:" .. value)
    elseif SIZES[name] then
      found[SIZES[name]] = value:gsub("^(%d+)%-%d+$", "%1") -- `1-4` nodes are one at least
    elseif not OF_NO_NODE[name] then
      found.other = name
    end
  end
  return found
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  if selector.unset(options["constraint"]) then
    local asked = function() return request(options) end
    local found = selector.constraint(options["comment"], options["partition"], asked)
    if found then options["constraint"] = found end
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
