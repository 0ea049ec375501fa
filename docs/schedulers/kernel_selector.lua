-- Which kinds of GPU suit a job: asked of kernel-selector, for cli_filter.lua and job_submit.lua.
--
-- A job says what it computes in its comment, as the JSON that POST /v1/placements takes:
--   sbatch --comment='{"operator": "gru", "hyperparameters": {"hidden": 1024, "batch": 64}}' job.sh
-- Whatever goes wrong, the answer is nil, the log says why, and the job is left as it is. So is a job that asks
-- for more than every node of the named kinds has for certain: no job is refused for what is said here.

local M = {
  url = os.getenv("KERNEL_SELECTOR_URL") or "http://127.0.0.1:8000",
  -- a file with the line `Authorization: Bearer ks_...`: on the command line all users would see it
  header_file = os.getenv("KERNEL_SELECTOR_HEADER_FILE"),
  -- a file with the kinds of GPU of each partition, as its nodes have them as features, and what a job can have
  -- of each of these nodes; the default partition has a star: `gpu*: h200 a100 gpus=4 cpus=32 memory=250000`.
  -- Slurm refuses a job that names a feature of no node, or of none in its partition, so others are never named
  kinds_file = os.getenv("KERNEL_SELECTOR_KINDS_FILE") or "/etc/slurm/kernel_selector.kinds",
  seconds = 0.5, -- slurmctld waits that long with its locks held, if it is the one that asks
}

-- What a job asks of its node; of each, what a node has for certain where the file does not say. Memory is in MB.
local SIZES = { "gpus", "cpus", "memory" }
local LEAST = { gpus = 0, cpus = 1, memory = 0 }
local MB = { [""] = 1, ["?"] = 1, K = 1 / 1024, M = 1, G = 1024, T = 1024 * 1024 }

local LONGEST_QUESTION, LONGEST_ANSWER, LONGEST_REASON = 4096, 65536, 300

local function say(text)
  if slurm and slurm.log_info then slurm.log_info("%s", "kernel_selector: " .. text) end
end

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- The kinds that a partition has, nil for the default one, and the least that its nodes of these kinds have.
-- Kinds on a line without a partition count for none: some partition may lack them.
function M.kinds(partition)
  local kinds, room, known, file = {}, {}, {}, io.open(M.kinds_file, "r")
  if not file then return kinds, room end
  for line in file:lines() do
    local name, text = line:gsub("#.*", ""):match("^%s*([^%s:]+)%s*:(.*)$")
    if name and (name:gsub("%*$", "") == partition or (not partition and name:match("%*$"))) then
      for word in text:gsub("%S+=%S*", ""):gmatch("[%w_-]+") do
        if not known[word] then table.insert(kinds, word) end
        known[word] = true
      end
      for _, size in ipairs(SIZES) do
        local said = tonumber(text:match("%f[%w]" .. size .. "=(%d+)")) or LEAST[size]
        room[size] = math.min(room[size] or said, said)
      end
    end
  end
  file:close()
  return kinds, room
end

-- GPUs and processors in Slurm's words: `gpu:2`, `gres/gpu:2`, `cpu:8,gres:gpu:2`. Nil for a kind of GPU, and
-- for anything else that a node may have.
local function counted(text)
  local gpus, cpus = 0, 0
  for item in text:gmatch("[^,]+") do
    local plain = item:gsub("^gres[:/]", "")
    local gpu = plain == "gpu" and "1" or plain:match("^gpu[:=](%d+)$")
    local cpu = plain:match("^cpu[:=](%d+)$")
    if not (gpu or cpu) then return nil end
    gpus, cpus = gpus + tonumber(gpu or 0), cpus + tonumber(cpu or 0)
  end
  return gpus, cpus
end

-- What a job of one task asks of its node; nil and why for a job of which no file of kinds can tell. `request`
-- has `other`, an option that says more of nodes, and as Slurm has them `nodes` (at least), `tasks`,
-- `tasks_per_node`, `cpus`, `memory` and a list `gpus`; what is nil was not asked for.
function M.demand(request)
  if request.other then return nil, request.other end
  for _, name in ipairs({ "nodes", "tasks", "tasks_per_node" }) do
    if (tonumber(request[name] or 1) or 2) > 1 then return nil, "several " .. name:gsub("_", " ") end
  end
  local gpus, cpus = 0, tonumber(request.cpus or 1)
  for _, text in ipairs(request.gpus) do
    local more, processors = counted(text)
    if not more then return nil, text end
    if more > 0 and gpus > 0 then return nil, "GPUs in two ways" end
    gpus, cpus = gpus + more, math.max(cpus, processors)
  end
  local number, unit = tostring(request.memory or 0):match("^(%d+)%.?0*([KMGT?]?)$") -- `0?`: all of it
  if not number then return nil, "memory " .. tostring(request.memory) end
  local memory = math.ceil(tonumber(number) * MB[unit])
  return { gpus = gpus, cpus = cpus, memory = memory }
end

-- Why kinds with that room may not do for a job, nil if they will.
local function obstacle(request, room)
  local demand, reason = M.demand(request)
  if not demand then return "the job asks for " .. reason .. ", for which nodes of a suitable kind may not do" end
  for _, size in ipairs(SIZES) do
    if demand[size] > room[size] then
      return ("the job asks for %s=%d, and %s has %s=%d for its partition"):format(
        size, demand[size], M.kinds_file, size, room[size])
    end
  end
end

-- The question in a comment, about the site's kinds unless it names some itself; nil for a comment that is
-- none of ours.
function M.question(comment, kinds)
  if type(comment) ~= "string" or #comment > LONGEST_QUESTION then return nil end
  if not comment:match("^{.*}$") or comment:find("%c") then return nil end
  if comment:find('"devices"', 1, true) then return comment end
  local rest = comment:sub(2)
  local comma = rest:match("^%s*}$") and "" or ", "
  return '{"devices": ["' .. table.concat(kinds, '", "') .. '"]' .. comma .. rest
end

-- The command that asks. The question is any user's text: it reaches the shell inside of single quotes alone.
function M.command(question)
  local words = {
    "curl --silent",
    "--max-time " .. M.seconds,
    "--write-out " .. quoted("\\n%{http_code}"),
    "--header " .. quoted("Content-Type: application/json"),
    "--data-raw " .. quoted(question), -- raw: a leading @ would name a file
    quoted(M.url .. "/v1/placements?format=slurm"),
    "2>/dev/null; echo \" $?\"",
  }
  if M.header_file then table.insert(words, 2, "--header " .. quoted("@" .. M.header_file)) end
  return table.concat(words, " ")
end

-- The constraint in an answer, cut to the site's kinds: `h200|a100`, either of which will do. Else nil and why.
function M.parsed(answer, kinds)
  answer = answer:gsub("%s+$", "")
  if not answer:match("^[%w|_-]+$") then return nil, "the answer is no constraint" end
  local spelled, found = {}, {}
  for _, kind in ipairs(kinds) do spelled[kind:lower()] = kind end
  for kind in answer:gmatch("[^|]+") do table.insert(found, spelled[kind:lower()]) end
  if #found == 0 then return nil, answer .. " suit it, and " .. M.kinds_file .. " has none of these" end
  return table.concat(found, "|")
end

-- Why there is no answer, by curl's exit code.
local function silence(code)
  local where = M.url .. " "
  if code == "7" then return where .. "refuses connections, or cannot be reached: does selector serve run there?" end
  if code == "6" then return where .. "has a name that nobody knows" end
  if code == "127" then return "curl is not installed, or not in the PATH" end
  if code == "" or code == "0" or code == "28" then return where .. "does not answer within " .. M.seconds .. " s" end
  return where .. "has no answer: curl ends with " .. code
end

-- What the service says to a question, or nil and why it says nothing of use.
local function asked(question)
  local pipe = io.popen(M.command(question), "r")
  if not pipe then return nil, "no process can be started" end
  local said = pipe:read(LONGEST_ANSWER) or ""
  local answer, status, code = said:match("^(.*)\n(%d+) ?(%d*)%s*$")
  pipe:close()
  if status == "200" then return answer end
  if not status or status == "000" then
    return nil, silence(code or said:match("^ (%d+)%s*$") or "")
  end
  local detail = (answer:match('"detail": *"(.-)"[,}]') or answer):gsub("%c", " ")
  return nil, "HTTP " .. status .. ": " .. detail:sub(1, LONGEST_REASON)
end

local function constraint(comment, partition, request)
  if M.unset(partition) then partition = nil end
  local kinds, room = M.kinds(partition)
  local question = M.question(comment, kinds)
  if not question then return nil end
  if #kinds == 0 then
    return nil, ("%s names no kind of GPU in %s; expected a line such as `%s: h200 a100`"):format(
      M.kinds_file, partition and "partition " .. partition or "the default partition", partition or "gpu*")
  end
  local reason = obstacle(request(), room)
  if reason then return nil, reason end
  local answer
  answer, reason = asked(question)
  if not answer then return nil, reason end
  return M.parsed(answer, kinds)
end

-- The constraint for a job with this comment in a partition, nil for the default one; or nil. `request` gives
-- what the job asks for, as M.demand takes it. Slurm refuses a job in whose script an error is raised.
function M.constraint(comment, partition, request)
  local done, found, reason = pcall(constraint, comment, partition, request)
  if not done then found, reason = nil, found end
  if reason then say("no constraint: " .. reason) end
  return found
end

-- Whether the user said nothing: a constraint of theirs is never changed.
function M.unset(value)
  return value == nil or value == "" or value == "(null)"
end

return M
