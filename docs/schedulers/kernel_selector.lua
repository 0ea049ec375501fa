-- Which kinds of GPU suit a job: asked of kernel-selector, for cli_filter.lua and job_submit.lua.
--
-- A job says what it computes in its comment, as the JSON that POST /v1/placements takes:
--   sbatch --comment='{"operator": "gru", "hyperparameters": {"hidden": 1024, "batch": 64}}' job.sh
-- Whatever goes wrong, the answer is nil, the log says why, and the job is left as it is.

local M = {
  url = os.getenv("KERNEL_SELECTOR_URL") or "http://127.0.0.1:8000",
  -- a file with the line `Authorization: Bearer ks_...`: on the command line all users would see it
  header_file = os.getenv("KERNEL_SELECTOR_HEADER_FILE"),
  -- a file with the kinds of GPU that this site has, as its nodes have them as features: `h200 a100`, or by
  -- partition, the default one with a star: `gpu*: h200 a100`. Slurm refuses a job that names a feature of no
  -- node, or of none in its partition, so others are never named
  kinds_file = os.getenv("KERNEL_SELECTOR_KINDS_FILE") or "/etc/slurm/kernel_selector.kinds",
  seconds = 0.5, -- slurmctld waits that long with its locks held, if it is the one that asks
}

local LONGEST_QUESTION, LONGEST_ANSWER, LONGEST_REASON = 4096, 65536, 300

local function say(text)
  if slurm and slurm.log_info then slurm.log_info("%s", "kernel_selector: " .. text) end
end

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- The kinds that a partition has, nil for the default one: those after its name, else those after none.
function M.kinds(partition)
  local own, general, file = nil, {}, io.open(M.kinds_file, "r")
  if not file then return general end
  for line in file:lines() do
    local text = line:gsub("#.*", "")
    local name, rest = text:match("^%s*([^%s:]+)%s*:(.*)$")
    local into = general
    if name then
      local is_default, plain = name:match("%*$"), name:gsub("%*$", "")
      if plain == partition or (is_default and not partition) then
        own = own or {}
        into = own
      else
        into = {} -- of another partition
      end
    end
    for word in (rest or text):gmatch("[%w_-]+") do table.insert(into, word) end
  end
  file:close()
  return own or general
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

-- The constraint for a job with this comment in a partition, nil for the default one; or nil.
function M.constraint(comment, partition)
  if M.unset(partition) then partition = nil end
  local kinds = M.kinds(partition)
  local question = M.question(comment, kinds)
  if not question then return nil end
  if #kinds == 0 then
    local where = partition and " in partition " .. partition or ""
    say("no constraint: " .. M.kinds_file .. " names no kind of GPU" .. where .. "; expected h200 a100, for example")
    return nil
  end
  local answer, reason = asked(question)
  local constraint
  if answer then constraint, reason = M.parsed(answer, kinds) end
  if not constraint then say("no constraint: " .. reason) end
  return constraint
end

-- Whether the user said nothing: a constraint of theirs is never changed.
function M.unset(value)
  return value == nil or value == "" or value == "(null)"
end

return M
