// Package scripted is a Model that plays a file: what a test wants a model to say, call, and get wrong.
//
// A file holds either answers, one for each step of a session, or rules, each with answers of its own:
//
//	repeat: last                  # play the last answer again and again; default: the text "(end of script)"
//	answers:
//	  - - reasoning: "Thinking."
//	    - text: "Let me see."
//	    - text: "in pieces of five"
//	      chunk: 5                # characters in each delta
//	      every: 10ms             # pause between them; goes with chunk only
//	    - texts: ["one ", "two"]  # one delta each
//	    - delay: 200ms
//	    - call: {tool: echo, args: {n: 1}}               # args: a mapping, or the exact bytes as a string
//	    - call: {tool: echo, args: '{"n": 1.50', wire_id: call_1}
//	    - usage: {input_tokens: 10, output_tokens: 2}
//	    - stop_reason: max_tokens # default: tool_calls with calls, end without
//	  - - attempts:               # the first try of a step, the second, …; the last is played for all further ones
//	        - - text: "Half a sen"
//	          - truncate: true      # ends with neither answer nor error
//	        - - fail: {class: overloaded, message: "Busy.", retryable: true, retry_after: 50ms}
//	        - - block: true         # says nothing until the context ends
//	        - - text: "Done."
//
//	rules:
//	  - match: weather            # the first rule whose match is part of the last user text; "" or none matches always
//	    repeat: last
//	    answers: […]
//
// Which answer comes next is read from the prompt, so a script survives restarts and replicas: with answers it is the number
// of assistant messages in the history, with rules the number of them since the last user message. Only attempts need memory:
// they are counted in this process for each distinct history.
package scripted
