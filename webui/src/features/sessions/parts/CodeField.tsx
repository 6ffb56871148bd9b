import { Text, Textarea } from '@mantine/core';
import { type KeyboardEvent, useId, useRef, useState } from 'react';
import { useTranslation } from 'react-i18next';
import type { Cell, CellBook } from '../cells';
import { isCompletable, restOf } from '../completions';
import { useComplete } from '../work';
import classes from './CodeField.module.css';

interface Offer {
  /** Where the cursor was, and what was in the field then. */
  at: number;
  code: string;
  matches: readonly string[];
  chosen: number;
}

/** The code of a cell. Tab after a name or a dot completes it, else indents; Escape and Tab leave the field. */
export function CodeField({
  cell,
  book,
  number,
  sessionId,
}: {
  cell: Cell;
  book: CellBook;
  number: number;
  sessionId: string;
}) {
  const { t } = useTranslation('sessionWork');
  const listId = useId();
  const field = useRef<HTMLTextAreaElement>(null);
  const lets = useRef(false);
  const complete = useComplete(sessionId);
  const [offer, setOffer] = useState<Offer | null>(null);
  const [says, setSays] = useState('');
  const write = (text: string) => {
    const element = field.current;
    if (element === null) return;
    element.setRangeText(text, element.selectionStart, element.selectionEnd, 'end');
    book.write(cell.id, element.value);
  };
  const accept = ({ at, code }: Offer, match: string) => {
    setOffer(null);
    const element = field.current;
    if (element === null || element.value !== code) return;
    element.setSelectionRange(at, at);
    write(restOf(code.slice(0, at), match));
    element.focus();
  };
  const ask = (code: string, at: number) =>
    complete.mutate(
      { code, at },
      {
        onSuccess: (matches) => {
          const element = field.current;
          if (element === null || element.value !== code || element.selectionStart !== at) return;
          const made = { at, code, matches, chosen: 0 };
          const [only] = matches;
          setSays(only === undefined ? t('cells.noMatch') : '');
          if (only !== undefined && matches.length === 1) accept(made, only);
          else setOffer(only === undefined ? null : made);
        },
        onError: () => setSays(t('cells.noMatch')),
      },
    );
  /** Returns whether a key is for the list of matches. */
  const choose = (event: KeyboardEvent): boolean => {
    if (offer === null) return false;
    const { matches, chosen } = offer;
    const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
    if (step !== 0) setOffer({ ...offer, chosen: (chosen + step + matches.length) % matches.length });
    else if (event.key === 'Escape') setOffer(null);
    else if ((event.key === 'Enter' || event.key === 'Tab') && !event.shiftKey) accept(offer, matches[chosen] ?? '');
    else return false;
    event.preventDefault();
    return true;
  };
  const onKey = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (choose(event)) return;
    const { value, selectionStart: at, selectionEnd } = event.currentTarget;
    if (event.key === 'Enter' && (event.shiftKey || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void book.run(cell.id);
    } else if (event.key === 'Escape') lets.current = true;
    else if (event.key === 'Tab' && !event.shiftKey && !lets.current) {
      event.preventDefault();
      if (at === selectionEnd && isCompletable(value, at)) ask(value, at);
      else write('    ');
    } else if (event.key !== 'Tab') lets.current = false;
  };
  const optionId = (index: number) => `${listId}-${index}`;
  return (
    <div>
      <Textarea
        ref={field}
        className={classes.code ?? ''}
        aria-label={t('cells.code', { number })}
        aria-autocomplete="list"
        aria-controls={offer === null ? undefined : listId}
        aria-activedescendant={offer === null ? undefined : optionId(offer.chosen)}
        rows={Math.min(24, Math.max(2, cell.code.split('\n').length))}
        spellCheck={false}
        value={cell.code}
        onChange={(event) => {
          setOffer(null);
          setSays('');
          book.write(cell.id, event.currentTarget.value);
        }}
        onKeyDown={onKey}
        onBlur={() => setOffer(null)}
      />
      {offer !== null && (
        <div id={listId} role="listbox" aria-label={t('cells.matches')} className={classes.matches}>
          {offer.matches.map((match, index) => (
            <div
              key={match}
              id={optionId(index)}
              role="option"
              tabIndex={-1}
              aria-selected={index === offer.chosen}
              ref={index === offer.chosen ? (element) => element?.scrollIntoView?.({ block: 'nearest' }) : undefined}
              onMouseDown={(event) => {
                event.preventDefault();
                accept(offer, match);
              }}
            >
              {match}
            </div>
          ))}
        </div>
      )}
      <Text size="sm" c="dimmed" role="status">
        {says}
      </Text>
    </div>
  );
}
