//! Chat templates: those of the real models, the shapes that are popular, and hostile ones.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{open, tokenizer};
use pannier_tokenizer::{ChatMessage, ChatTemplate, LocalTime, RenderInput, Role, TemplateError};
use serde_json::json;

fn message(role: Role, content: &str) -> ChatMessage {
    ChatMessage::new(role, content)
}

fn turns() -> Vec<ChatMessage> {
    vec![
        message(Role::System, "Be brief."),
        message(Role::User, " Hi \n"),
        message(Role::Assistant, "Hello!"),
        message(Role::User, "Bye"),
    ]
}

fn render(source: &str, input: &RenderInput) -> Result<String, TemplateError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(input)
}

fn prompt(messages: &[ChatMessage]) -> RenderInput<'_> {
    RenderInput { messages, add_generation_prompt: true, ..RenderInput::default() }
}

#[test]
fn smollm2_adds_its_system_prompt_and_the_headers() {
    let model = open("SmolLM2-135M-Instruct.Q4_1.gguf");
    let tokenizer = tokenizer("smollm2-135m-instruct-q4_1");
    let template = ChatTemplate::from_metadata(model.metadata(), &tokenizer).unwrap();
    let only = [message(Role::User, "Hi")];
    assert_eq!(
        template.render(&prompt(&only)).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        template.render(&RenderInput { messages: &turns(), ..RenderInput::default() }).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi \n<|im_end|>\n\
         <|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    );
}

#[test]
fn qwen_coder_lists_tools_and_wraps_their_results() {
    let model = open("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
    let tokenizer = tokenizer("qwen2.5-coder-0.5b");
    let template = ChatTemplate::from_metadata(model.metadata(), &tokenizer).unwrap();
    assert!(template.reads("tools") && !template.reads("enable_thinking"));
    assert_eq!(
        template.render(&prompt(&turns())).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi \n<|im_end|>\n\
         <|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    );
    let tools = json!([{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]);
    let call = json!([{"type": "function", "function": {"name": "now", "arguments": {"tz": "Zürich <b>", "n": 1.0}}}]);
    let messages = [
        message(Role::User, "What time is it?"),
        message(Role::Assistant, "").with("tool_calls", call),
        message(Role::Tool, "12:00"),
    ];
    let out = template.render(&RenderInput { tools: Some(&tools), ..prompt(&messages) }).unwrap();
    for part in [
        "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"now\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}\n</tools>",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"tz\": \"Zürich <b>\", \"n\": 1.0}}\n</tool_call><|im_end|>",
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ] {
        assert!(out.contains(part), "{part}\nnot in\n{out}");
    }
}

#[test]
fn a_base_model_has_no_template_and_says_so() {
    let tokenizer = tokenizer("gemma-3-270m-q4_k_m");
    let metadata = pannier_gguf::Metadata::new();
    assert_eq!(ChatTemplate::from_metadata(&metadata, &tokenizer).unwrap_err(), TemplateError::NoTemplate);
    let mut metadata = pannier_gguf::Metadata::new();
    metadata.insert("tokenizer.chat_template.tool_use", "{{ bos_token }}T");
    assert_eq!(ChatTemplate::variants(&metadata).collect::<Vec<_>>(), ["tool_use"]);
    let tools = ChatTemplate::variant_from_metadata(&metadata, &tokenizer, "tool_use").unwrap();
    assert_eq!(tools.render(&prompt(&[])).unwrap(), "<bos>T");
    let error = ChatTemplate::variant_from_metadata(&metadata, &tokenizer, "rag").unwrap_err();
    assert_eq!(error, TemplateError::NoVariant { name: "rag".into(), available: "tool_use".into() });
}

const LLAMA3: &str = r#"{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

#[test]
fn llama3_shape_reassigns_messages_and_asks_for_the_date() {
    let expected = |date: &str| {
        format!(
            "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: {date}\n\nBe brief.<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n\
             Hello!<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n"
        )
    };
    let messages = turns();
    assert_eq!(render(LLAMA3, &prompt(&messages)).unwrap(), expected("26 Jul 2024"));
    let now = LocalTime { year: 2026, month: 11, day: 29, hour: 13, minute: 5, second: 0 };
    assert_eq!(
        render(LLAMA3, &RenderInput { now: Some(now), ..prompt(&messages) }).unwrap(),
        expected("29 Nov 2026")
    );
    let calls = [message(Role::User, "x"), message(Role::Assistant, "").with("tool_calls", json!([1, 2]))];
    assert_eq!(
        render(LLAMA3, &prompt(&calls)).unwrap_err(),
        TemplateError::Refused {
            line: 24,
            message: "This model only supports single tool-calls at once!".into()
        }
    );
}

const GEMMA: &str = r#"{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"#;

#[test]
fn gemma_shape_refuses_roles_that_do_not_alternate() {
    assert_eq!(
        render(GEMMA, &prompt(&turns())).unwrap(),
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n\
         <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    );
    let twice = [message(Role::User, "a"), message(Role::User, "b")];
    assert!(matches!(
        render(GEMMA, &prompt(&twice)).unwrap_err(),
        TemplateError::Refused { line: 11, message } if message.starts_with("Conversation roles must alternate")
    ));
}

const QWEN3: &str = r"{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == 'user' and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}";

#[test]
fn qwen3_shape_drops_old_thoughts_and_turns_thinking_off() {
    let messages = [
        message(Role::User, "1"),
        message(Role::Assistant, "<think>\nold\n</think>\n\nA"),
        message(Role::User, "2"),
        message(Role::Assistant, "<think>\nnew\n</think>\n\nB"),
    ];
    let expected = "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\n2<|im_end|>\n\
                    <|im_start|>assistant\n<think>\nnew\n</think>\n\nB<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(render(QWEN3, &prompt(&messages)).unwrap(), expected);
    for (thinking, ending) in [(true, ""), (false, "<think>\n\n</think>\n\n")] {
        let out = render(QWEN3, &RenderInput { thinking: Some(thinking), ..prompt(&messages) }).unwrap();
        assert_eq!(out, format!("{expected}{ending}"));
    }
    assert!(ChatTemplate::new(QWEN3, "", "").unwrap().reads("enable_thinking"));
}

#[test]
fn mistral_and_phi3_shapes() {
    let mistral = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
                   {{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}\
                   {{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}\
                   {{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}\
                   {% endif %}{% endfor %}";
    let dialogue = &turns()[1..];
    assert_eq!(
        render(mistral, &prompt(dialogue)).unwrap(),
        "<s>[INST]  Hi \n [/INST]Hello!</s>[INST] Bye [/INST]"
    );
    assert!(matches!(render(mistral, &prompt(&turns())), Err(TemplateError::Refused { line: 1, .. })));

    let phi3 = "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}\
                {% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}\
                {% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}\
                {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}";
    assert_eq!(
        render(phi3, &prompt(&turns()[2..])).unwrap(),
        "<|assistant|>\nHello!<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n"
    );
}

const HARMONY: &str = r#"{%- macro render_type(spec, level=0) -%}
    {%- if spec.type == "array" -%}
        {{- render_type(spec['items']) + "[]" -}}
    {%- elif spec.type == "object" -%}
        {{- "{\n" -}}
        {%- for name, value in spec.properties.items() -%}
            {{- "  " * (level + 1) + name -}}
            {%- if name not in (spec.required or []) -%}{{- "?" -}}{%- endif -%}
            {{- ": " + render_type(value, level + 1) -}}
            {%- if not loop.last -%}{{- "," -}}{%- endif -%}
            {{- "\n" -}}
        {%- endfor -%}
        {{- "  " * level + "}" -}}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- else -%}
        {{- spec.type or "any" -}}
    {%- endif -%}
{%- endmacro -%}
{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
{{- "<|start|>system<|message|>Reasoning: " + reasoning_effort + "\n" }}
{%- if tools %}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "type " + tool.name + " = (_: " + render_type(tool.parameters) + ") => any;\n" }}
    {%- endfor %}
{%- endif %}
{{- "<|end|>" }}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- endgeneration -%}
    {%- elif loop.last and message.role == 'system' %}{% break %}
    {%- else -%}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"#;

#[test]
fn harmony_shape_renders_types_with_recursive_macros() {
    let tools = json!([{"type": "function", "function": {"name": "find", "parameters": {
        "type": "object",
        "required": ["what"],
        "properties": {
            "what": {"type": "array", "items": {"type": "string"}},
            "where": {"type": "object", "properties": {"unit": {"type": "string", "enum": ["km", "mi"]}}}
        }
    }}}]);
    let extra = json!({"reasoning_effort": "low"});
    let messages = &turns()[1..];
    let input = RenderInput { tools: Some(&tools), extra: extra.as_object(), ..prompt(messages) };
    assert_eq!(
        render(HARMONY, &input).unwrap(),
        "<|start|>system<|message|>Reasoning: low\ntype find = (_: {\n  what: string[],\n  where?: {\n    unit?: \"km\" | \"mi\"\n  }\n}) => any;\n\
         <|end|><|start|>user<|message|> Hi \n<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|end|>\
         <|start|>user<|message|>Bye<|end|><|start|>assistant"
    );
}

#[test]
fn python_idioms() {
    let data = json!({"d": {"b": [1, 2.5, null, true], "a": "é\"\n</x>\u{1}"}, "s": "a-b-c"});
    let extra = data.as_object();
    for (source, expected) in [
        ("{{ d|tojson }}", "{\"b\": [1, 2.5, null, true], \"a\": \"é\\\"\\n</x>\\u0001\"}"),
        ("{{ d.b|tojson(indent=2) }}", "[\n  1,\n  2.5,\n  null,\n  true\n]"),
        (
            "{{ d|tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
            "{\"a\":\"\\u00e9\\\"\\n</x>\\u0001\",\"b\":[1,2.5,null,true]}",
        ),
        ("{{ {}|tojson(indent=4) }}{{ []|tojson }}{{ 1e20|tojson }}{{ 0.00001|tojson }}", "{}[]1e+201e-05"),
        ("{{ d.b }} {{ none }} {{ missing }}|{{ true }}", "[1, 2.5, None, True] None |True"),
        (
            "{{ s.split('-') }} {{ s.rsplit('-', 1) }} {{ s.partition('-')[2] }} {{ s.rpartition('-')[0] }}",
            "['a', 'b', 'c'] ['a-b', 'c'] b-c a-b",
        ),
        (
            "{{ s.removeprefix('a-') }} {{ s.removesuffix('-c') }} {{ s.upper() }} {{ s.replace('-', '') }}",
            "b-c a-b A-B-C abc",
        ),
        (
            "{% for k, v in d.items() %}{{ k }}{% endfor %} {{ d.get('x', 'y') }} {{ d.keys()|list }}",
            "ba y ['b', 'a']",
        ),
        ("{{ ' x '.strip() }}{{ 'xxay'.lstrip('x') }}{{ 'a b'.title() }}{{ 'ab'.find('b') }}", "xayA B1"),
        (
            "{{ 'ab'[::-1] }} {{ d.b[-1] }} {{ 'b' in d }} {{ 3 * 4 }} {{ '=' * 3 }} {{ [1] * 2 }}",
            "ba True True 12 === [1, 1]",
        ),
        ("{% set x, y = 1, [2] %}{{ x }}{{ y }}", "1[2]"),
        (
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb\n"),
        ("{% generation %}\nx{% endgeneration %}\n", "x"),
        (
            "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.l|join(',') }}",
            "system,user,assistant,user",
        ),
        ("{% macro m(a, b='B') %}{{ a }}{{ b }}{% endmacro %}{{ m('A') }}{{ m(b='C', a=1) }}", "AB1C"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list|length }}", "2"),
    ] {
        let messages = turns();
        let input = RenderInput { extra, ..prompt(&messages) };
        assert_eq!(render(source, &input).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn failures_say_where() {
    let messages = turns();
    for (source, line) in [("a\nb {{ 1 + }}", 2), ("\n\n{% if x %}", 3), ("{% include 'x' %}", 1)] {
        assert!(
            matches!(render(source, &prompt(&messages)),
            Err(TemplateError::Syntax { line: at, .. }) if at == line),
            "{source}: {:?}",
            render(source, &prompt(&messages))
        );
    }
    for (source, line) in [
        ("\n{{ missing.x }}", 2),
        ("{{ 1 / 0 }}", 1),
        ("{{ nope() }}", 1),
        ("\n\n{{ 'a'.nope() }}", 3),
        ("{{ strftime_now('%Y') }}", 1),
        ("{{ 'a'|nope }}", 1),
        ("{{ [1,2]|tojson(nope=1) }}", 1),
    ] {
        assert!(
            matches!(render(source, &prompt(&messages)),
            Err(TemplateError::Failed { line: at, .. }) if at == line),
            "{source}: {:?}",
            render(source, &prompt(&messages))
        );
    }
}

/// Runs on the smallest stack that a phone gives a thread.
fn on_small_stack(run: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(512 << 10).spawn(run).unwrap().join().unwrap();
}

#[test]
fn hostile_templates_end_with_an_error() {
    on_small_stack(|| {
        let repeat = |text: &str, n: usize| text.repeat(n);
        let sources = [
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".to_owned(),
            "{% set ns = namespace(a='x') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}".to_owned(),
            "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".to_owned(),
            "{% macro f(n) %}{{ f([[[[n]]]]) }}{% endmacro %}{{ f(0) }}".to_owned(),
            "{{ [1] * 90000000 }}".to_owned(),
            "{{ 'x' * 90000000 }}".to_owned(),
            "{% set l = range(100000)|list %}{% for i in range(100000) %}{% set x = l.count(1) %}{% endfor %}".to_owned(),
            "{% set l = range(100000)|list %}{% for i in range(100000) %}{% set x = 1 in l %}{% endfor %}".to_owned(),
            "{% set l = range(100000)|list %}{% for i in range(100000) %}{% set x = l ~ l %}{% endfor %}".to_owned(),
            "{{ '{:>900000000}'.format(5) }}".to_owned(),
            "{{ '%0900000000d'|format(5) }}".to_owned(),
            "{{ 10 ** 1000000000 }}".to_owned(),
            "{% set ns = namespace(a=[1]) %}{% for i in range(50000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}".to_owned(),
            format!("{{% set a = 1 %}}{}{{{{ a }}}}", repeat("{% set a = [a] %}", 20_000)),
            "{% set ns = namespace(a=1) %}{% for i in range(50000) %}{% set ns.a = {'a': ns.a} %}{% endfor %}".to_owned(),
            "{% set ns = namespace() %}{% for i in range(50000) %}{% set ns.a = namespace(b=ns) %}{% endfor %}{{ ns }}{{ nope.x }}".to_owned(),
            "{% set ns = namespace() %}{% for i in range(50000) %}{% set p = ns.m %}{% macro m() %}{{ p }}{% endmacro %}{% set ns.m = m %}{% endfor %}".to_owned(),
            "{% set ns = namespace(a=[1]) %}{% for i in range(99999) %}{% set ns.a = ns.a[::-1]|reverse %}{% endfor %}{{ nope.x }}".to_owned(),
            repeat("{{ (", 10_000),
            format!("{{{{ {}x{} }}}}", repeat("(", 1000), repeat(")", 1000)),
            format!("{{{{ {}x }}}}", repeat("not ", 5000)),
            format!("{{{{ x{} }}}}", repeat("|string", 5000)),
            format!("{{{{ x{} }}}}", repeat(" ~ x", 5000)),
            repeat("{% if x %}", 5000),
            format!("{{% if x %}}{}{{% endif %}}", repeat("{% elif x %}", 5000)),
            "{{ raise_exception('no') }}".to_owned(),
            "{{ raise_exception() }}".to_owned(),
            "{% for".to_owned(),
            "{{ '".to_owned(),
            "{% set __plain = 1 %}".to_owned(),
        ];
        for source in sources {
            let messages = turns();
            let result = render(&source, &prompt(&messages));
            assert!(result.is_err(), "{}: {} bytes", &source[..source.len().min(60)], result.unwrap().len());
        }
    });
}

#[test]
fn the_deepest_that_is_allowed_fits_a_small_stack() {
    on_small_stack(|| {
        let messages = turns();
        let nested = "[".repeat(14) + "n" + &"]".repeat(14);
        let source = format!(
            "{{% macro f(n) %}}{{{{ n|string|length }}}}{{{{ (n == n) }}}}{{% for i in {nested} %}}{{{{ i }}}}{{% endfor %}}{{% endmacro %}}\
             {{% set ns = namespace(n=1) %}}{{% for i in range(60) %}}{{% set ns.n = [ns.n] %}}{{% endfor %}}{{{{ f(ns.n) }}}}{{{{ ns.n|tojson }}}}"
        );
        assert!(render(&source, &prompt(&messages)).is_ok());
        let not = format!("{{{{ {}x }}}}", "not ".repeat(550));
        assert!(render(&not, &prompt(&messages)).is_ok());
        let attributes = format!("{{{{ x is defined and x{} }}}}", ".a".repeat(250));
        assert!(render(&attributes, &prompt(&messages)).is_ok());
        let filters = format!("{{{{ x{} }}}}", "|string".repeat(290));
        assert!(render(&filters, &prompt(&messages)).is_ok());
        let elif = format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(190));
        assert!(render(&elif, &prompt(&messages)).is_ok());
        let blocks = format!("{}{}", "{% if true %}".repeat(30), "{% endif %}".repeat(30));
        assert!(render(&blocks, &prompt(&messages)).is_ok());
        let recursion = "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(28) }}";
        assert!(render(recursion, &prompt(&messages)).is_ok());
    });
}

#[test]
fn long_conversations_are_not_too_much_work() {
    let mut messages = vec![message(Role::System, "s")];
    for _ in 0..500 {
        messages.push(message(Role::User, &"question ".repeat(200)));
        messages.push(message(Role::Assistant, &"answer ".repeat(300)));
    }
    for template in [LLAMA3, GEMMA, QWEN3, HARMONY] {
        assert!(render(template, &prompt(&messages)).is_ok());
    }
}
