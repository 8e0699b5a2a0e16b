-- What wrk sends for the bench: chat calls of a given size, each another conversation or all the same, and at the
-- end one line of JSON about what came back. Arguments: key, body bytes, "unique" or "equal", "keep" or "close".
local key, size, kind, connection, prefix, suffix, equal
local number = 0

function init(args)
  key, size, kind, connection = args[1], tonumber(args[2]), args[3], args[4]
  prefix = '{"model":"kimi-k2.5","messages":[{"role":"system","content":"You answer briefly."},'
    .. '{"role":"user","content":"Question '
  suffix = '"}],"temperature":1,"max_tokens":1024}'
  local filler = string.rep("why? ", math.ceil(size / 5)):sub(1, size - #prefix - #suffix - 12)
  suffix = filler .. suffix
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = "Bearer " .. key
  if connection == "close" then wrk.headers["Connection"] = "close" end
  equal = wrk.format("POST", "/v1/chat/completions", nil, prefix .. string.format("%011d ", 0) .. suffix)
end

function request()
  if kind == "equal" then return equal end
  number = number + 1
  return wrk.format("POST", "/v1/chat/completions", nil, prefix .. string.format("%011d ", number) .. suffix)
end

function done(summary, latency)
  local failed = summary.errors
  io.write(string.format(
    '\n{"calls":%d,"seconds":%.6f,"not_2xx":%d,"broken":%d,"p50":%.6f,"p99":%.6f}\n',
    summary.requests, summary.duration / 1e6, failed.status,
    failed.connect + failed.read + failed.write + failed.timeout,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
