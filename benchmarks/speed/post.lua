-- A small chat for wrk: `wrk -s post.lua URL -- TAG`. Each request is a conversation that was never sent before, since
-- no two clients say the same. What was measured is written in one line as JSON.

local head = '{"model":"bench","temperature":0.5,"messages":[{"role":"system","content":"You are the assistant of a small'
  .. ' online shop. Answer in one or two sentences, in the language of the customer, and never promise a delivery date.'
  .. ' If you do not know something, say so and name the address of the support team."},{"role":"user","content":"'
local tail = ': I ordered a pair of running shoes on Monday and have not heard anything since. Can you tell me where the'
  .. ' parcel is, and whether I can still change the address?"}]}'
local fields = { ["content-type"] = "application/json", ["authorization"] = "Bearer sk-bench" }
local tag, number = "", 0

function init(arguments)
  tag = arguments[1] or ""
end

function request()
  number = number + 1
  return wrk.format("POST", nil, fields, head .. "Order " .. tag .. "-" .. number .. tail)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"microseconds":%d,"p50":%.1f,"p99":%.1f,"failed":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout
  ))
end
