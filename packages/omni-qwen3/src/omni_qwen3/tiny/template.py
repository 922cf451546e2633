"""The chat template: Qwen's wire format around turns and media, in our own words."""

from __future__ import annotations

CHAT_TEMPLATE = """\
{%- set media = {
  'audio': '<|audio_start|><|audio_pad|><|audio_end|>',
  'image': '<|vision_start|><|image_pad|><|vision_end|>',
  'video': '<|vision_start|><|video_pad|><|vision_end|>',
} -%}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
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
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

THINKING_TEMPLATE = CHAT_TEMPLATE.replace(
    "'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"
)
"""The same, with a thought opened for the reply to continue."""
