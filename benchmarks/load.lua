-- Asks for a known answer again and again, and holds each one to the last byte against what it must be.
--
-- wrk tells a script no connection, so each thread has to have one alone: then an answer is that to the thread's newest
-- request. What is counted stands in the last line of the output, as JSON.

local threads = {}

function setup(thread)
  table.insert(threads, thread)
  -- wrk asks the first thread for one request that it never sends.
  thread:set("asked", #threads == 1 and -1 or 0)
  thread:set("number", #threads)
end

function init(arguments)
  kind, size, mode, model = arguments[1], tonumber(arguments[2]), arguments[3], arguments[4]
  answered, damaged, edited, fault = 0, 0, 0, ""
  local numbers = {}
  for each = 1, math.ceil(size / 8) do
    numbers[each] = string.format("%07d ", each)
  end
  filler = string.sub(table.concat(numbers), 1, size)
  history = ""
  if kind == "edited" then
    local parts = {}
    for each = 0, 19 do
      local role = each % 2 == 0 and "user" or "assistant"
      parts[each + 1] = string.format('{"role":"%s","content":"%d of %d: %s"},', role, each, number, filler)
    end
    history = table.concat(parts)
  end
end

local function message(marker)
  return string.format('%s{"role":"user","content":"%s %s %s"}', history, marker, filler, marker)
end

local function expected(marker, body)
  if kind == "stream" then
    local events = {}
    for each = 0, 99 do
      events[each + 1] = string.format('data: {"choices":[{"index":0,"delta":{"content":"%s %d"}}]}\n\n', marker, each)
    end
    return table.concat(events) .. "data: [DONE]\n\n"
  end
  if kind == "edited" then
    return string.format('{"choices":[{"index":0,"message":{"role":"assistant","content":"%s"}}]}', marker)
  end
  return body
end

function request()
  asked = asked + 1
  local marker = string.format("m%d.%d", number, asked)
  local stream = kind == "stream" and ',"stream":true' or ""
  local body = string.format('{"model":"%s"%s,"messages":[%s]}', model, stream, message(marker))
  expects = expected(marker, body)
  local fields = {["Content-Type"] = "application/json", ["x-load"] = kind .. " " .. marker, ["x-context-mode"] = mode}
  return wrk.format("POST", nil, fields, body)
end

function response(status, fields, body)
  answered = answered + 1
  for name, value in pairs(fields) do
    if string.lower(name) == "x-context-actions" and string.find(value, "=%d") then
      edited = edited + 1
    end
  end
  if status ~= 200 or body ~= expects then
    damaged = damaged + 1
    fault = string.format("status %d, %d bytes in place of %d", status, #body, #expects)
  end
end

function done(summary)
  local sums, lost, said = {asked = 0, answered = 0, damaged = 0, edited = 0}, 0, ""
  for _, thread in ipairs(threads) do
    for name, sum in pairs(sums) do
      sums[name] = sum + thread:get(name)
    end
    -- One may be under way when the time is over.
    lost = lost + math.max(0, thread:get("asked") - thread:get("answered") - 1)
    said = thread:get("fault") ~= "" and thread:get("fault") or said
  end
  local errors = summary.errors
  io.write(string.format(
    '\n{"asked":%d,"answered":%d,"damaged":%d,"edited":%d,"lost":%d,"errors":%d,"seconds":%f,"fault":"%s"}\n',
    sums.asked, sums.answered, sums.damaged, sums.edited, lost,
    errors.connect + errors.read + errors.write + errors.timeout, summary.duration / 1e6, said))
end
