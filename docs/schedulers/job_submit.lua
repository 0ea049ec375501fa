-- Runs inside of slurmctld with its locks held: every submission waits for the answer, half a second at
-- most. Users cannot go around it, as they can around cli_filter.lua.

local selector = dofile("/etc/slurm/kernel_selector.lua")

local UNSET, UNSET_16 = 4294967294, 65534 -- NO_VAL and NO_VAL16: of a memory in MB, 65534 is a number like others

-- Fields that say which nodes will do, or how many: a job that has any of them is left alone.
local OF_NODES = ([[req_nodes exc_nodes reservation batch_features clusters prefer extra network req_switch
  pn_min_tmp_disk min_mem_per_cpu cpus_per_tres mem_per_tres tres_per_socket]])
-- Such fields of 16 bits, of which another number says that the user set none
local OF_NODES_16 = ([[contiguous core_spec thread_spec segment_size ntasks_per_board ntasks_per_socket
  ntasks_per_core ntasks_per_gpu ntasks_per_tres sockets_per_node sockets_per_board boards_per_node
  cores_per_socket threads_per_core]])
local ENFORCE_BINDING = 16 -- the bit of --gres-flags=enforce-binding

-- A field, nil where the user set none.
local function field(job, name, unset)
  local value = job[name]
  if selector.unset(value) or value == UNSET or value == unset then return nil end
  return value
end

local function request(job)
  local found = { gpus = {} }
  for name in OF_NODES:gmatch("%S+") do
    if (field(job, name) or 0) ~= 0 then found.other = name end
  end
  for name in OF_NODES_16:gmatch("%S+") do
    if (field(job, name, UNSET_16) or 0) ~= 0 then found.other = name end
  end
  if math.floor((field(job, "bitflags") or 0) / ENFORCE_BINDING) % 2 == 1 then found.other = "gres-flags" end
  if field(job, "shared", UNSET_16) then found.other = "exclusive or shared nodes" end
  for _, name in ipairs({ "tres_per_job", "tres_per_node", "tres_per_task" }) do
    table.insert(found.gpus, field(job, name))
  end
  found.nodes, found.tasks = field(job, "min_nodes"), field(job, "num_tasks")
  found.tasks_per_node = field(job, "ntasks_per_node", UNSET_16)
  found.cpus, found.memory = 1, field(job, "min_mem_per_node")
  for _, name in ipairs({ "cpus_per_task", "pn_min_cpus", "min_cpus" }) do
    found.cpus = math.max(found.cpus, field(job, name, UNSET_16) or 1)
  end
  return found
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  if selector.unset(job_desc.features) then
    local asked = function() return request(job_desc) end
    local found = selector.constraint(job_desc.comment, job_desc.partition, asked)
    if found then job_desc.features = found end
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
