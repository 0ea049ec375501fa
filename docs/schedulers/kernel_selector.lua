-- Which kinds of GPU suit a job: asked of kernel-selector, for cli_filter.lua and job_submit.lua.
--
-- A job says what it computes in its comment, as the JSON that POST /v1/placements takes:
--   sbatch --comment='{"operator": "gru", "hyperparameters": {"hidden": 1024, "batch": 64}}' job.sh
-- Whatever goes wrong, the answer is nil and the job is left as it is.

local M = {
  url = os.getenv("KERNEL_SELECTOR_URL") or "http://127.0.0.1:8000",
  -- a file with the line `Authorization: Bearer ks_...`: on the command line all users would see it
  header_file = os.getenv("KERNEL_SELECTOR_HEADER_FILE"),
  seconds = 0.5, -- slurmctld waits that long with its locks held, if it is the one that asks
}

local LONGEST_QUESTION, LONGEST_ANSWER = 4096, 200

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- The command that asks, or nil for a comment that is none of ours. The comment is any user's text: it
-- reaches the shell inside of single quotes alone.
function M.command(comment)
  if type(comment) ~= "string" or #comment > LONGEST_QUESTION then return nil end
  if not comment:match("^{.*}$") or comment:find("%c") then return nil end
  local words = {
    "curl --silent --fail",
    "--max-time " .. M.seconds,
    "--header " .. quoted("Content-Type: application/json"),
    "--data-raw " .. quoted(comment), -- raw: a leading @ would name a file
    quoted(M.url .. "/v1/placements?format=slurm"),
    "2>/dev/null",
  }
  if M.header_file then table.insert(words, 2, "--header " .. quoted("@" .. M.header_file)) end
  return table.concat(words, " ")
end

-- The constraint in an answer, such as `h200|a100`, or nil for what is none.
function M.parsed(answer)
  answer = answer:gsub("%s+$", "")
  if #answer > LONGEST_ANSWER or not answer:match("^[%w|&_-]+$") then return nil end
  return answer
end

-- The constraint for a job with this comment, or nil.
function M.constraint(comment)
  local command = M.command(comment)
  local pipe = command and io.popen(command, "r")
  if not pipe then return nil end
  local answer = pipe:read(LONGEST_ANSWER + 2) or ""
  pipe:close()
  return M.parsed(answer)
end

-- Whether the user said nothing: a constraint of theirs is never changed.
function M.unset(value)
  return value == nil or value == "" or value == "(null)"
end

return M
