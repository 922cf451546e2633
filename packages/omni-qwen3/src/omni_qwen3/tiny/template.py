"""The chat template: Qwen's wire format around turns and media, in our own words."""

from __future__ import annotations

CHAT_TEMPLATE = """\
{%- set media = {
  'audio': '<|audio_start|><|audio_pad|><|audio_end|>',
  'image': '<|vision_start|><|image_pad|><|vision_end|>',
  'video': '<|vision_start|><|video_pad|><|vision_end|>',
} -%}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}
{{- messages[0]['content'] + '\\n\\n' }}
{%- endif %}
{{- 'Functions you may call:\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n' + tool | tojson }}
{%- endfor %}
{{- '\\n</tools>\\nWrite each call so:\\n' }}
{{- '<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' }}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message['role'] == 'system') %}
{%- set result = message['role'] == 'tool' %}
{{- '<|im_start|>' + ('user' if result else message['role']) + '\\n' }}
{{- '<tool_response>\\n' if result }}
{%- if message['content'] is string %}
{{- message['content'] }}
{%- else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'text' %}
{{- part['text'] }}
{%- elif part['type'] in ('audio', 'audio_url', 'input_audio') %}
{{- media['audio'] }}
{%- elif part['type'] in ('image', 'image_url') %}
{{- media['image'] }}
{%- elif part['type'] in ('video', 'video_url') %}
{{- media['video'] }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '\\n</tool_response>' if result }}
{%- for call in message['tool_calls'] or () %}
{{- '\\n' if message['content'] or not loop.first }}
{{- '<tool_call>\\n{"name": ' + call['function']['name'] | tojson }}
{{- ', "arguments": ' + call['function']['arguments'] | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

THINKING_TEMPLATE = CHAT_TEMPLATE.replace(
    "'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"
)
"""The same, with a thought opened for the reply to continue."""
