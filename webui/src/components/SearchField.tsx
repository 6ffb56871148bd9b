import { CloseButton, TextInput } from '@mantine/core';
import { useDebouncedCallback, useHotkeys } from '@mantine/hooks';
import { IconSearch } from '@tabler/icons-react';
import { useEffect, useRef, useState } from 'react';

/** A text field whose text lands in the URL shortly after the last key; `/` puts the focus into it. */
export function SearchField({
  value,
  onChange,
  label,
  placeholder,
  hint,
  clearLabel,
  className,
}: {
  value: string;
  onChange: (value: string) => void;
  label: string;
  placeholder?: string;
  hint?: string;
  clearLabel: string;
  className?: string | undefined;
}) {
  const [text, setText] = useState(value);
  const field = useRef<HTMLInputElement>(null);
  const write = useDebouncedCallback(onChange, 300);
  useEffect(() => setText(value), [value]);
  useHotkeys([['/', () => field.current?.focus()]]);
  const clear = () => {
    setText('');
    onChange('');
  };
  return (
    <TextInput
      ref={field}
      className={className ?? ''}
      aria-label={label}
      placeholder={placeholder ?? label}
      title={hint}
      leftSection={<IconSearch size={16} aria-hidden />}
      rightSection={text === '' ? null : <CloseButton size="sm" aria-label={clearLabel} onClick={clear} />}
      value={text}
      maxLength={1000}
      onChange={(event) => {
        setText(event.currentTarget.value);
        write(event.currentTarget.value);
      }}
    />
  );
}
