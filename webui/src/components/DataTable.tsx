import { NativeSelect, UnstyledButton } from '@mantine/core';
import { IconArrowDown, IconArrowUp, IconSelector } from '@tabler/icons-react';
import { useWindowVirtualizer } from '@tanstack/react-virtual';
import {
  type CSSProperties,
  type KeyboardEvent,
  memo,
  type ReactNode,
  useCallback,
  useEffect,
  useLayoutEffect,
  useRef,
  useState,
} from 'react';
import { useTranslation } from 'react-i18next';
import classes from './DataTable.module.css';
import type { Pages } from './usePages';

export interface Column<T> {
  id: string;
  label: string;
  /** A track of a CSS grid, such as `2fr` or `120px`. */
  width: string;
  /** The field by which the server orders; absent where it cannot. */
  orderBy?: string;
  /** In a narrow table, secondary columns are put in a second line. */
  isSecondary?: boolean;
  cell: (row: T) => ReactNode;
}

export interface Selection<T> {
  ids: ReadonlySet<string>;
  /** Whether a row may be selected; any if absent. */
  isSelectable?: (row: T) => boolean;
  change: (ids: ReadonlySet<string>) => void;
}

interface Props<T> {
  label: string;
  columns: readonly Column<T>[];
  pages: Pages<T>;
  idOf: (row: T) => string;
  nameOf: (row: T) => string;
  /** The order in the server's language, such as `-created_at`. */
  order?: string;
  onOrder?: (order: string) => void;
  selection?: Selection<T>;
}

const rowHeight = 44;

/** Returns the order after a click on a column: ascending, then descending. */
export function nextOrder(order: string | undefined, field: string): string {
  return order === field ? `-${field}` : field;
}

function OrderButton({
  label,
  field,
  order,
  onOrder,
}: {
  label: string;
  field: string;
  order?: string;
  onOrder: (order: string) => void;
}) {
  const { t } = useTranslation('components');
  const Icon = order === field ? IconArrowUp : order === `-${field}` ? IconArrowDown : IconSelector;
  return (
    <UnstyledButton
      className={classes.order}
      onClick={() => onOrder(nextOrder(order, field))}
      title={t('table.sortBy', { name: label })}
    >
      {label} <Icon size={14} aria-hidden />
    </UnstyledButton>
  );
}

/** The order as a field, for narrow tables, whose rows have no heads of columns. */
function OrderField<T>({
  columns,
  order,
  onOrder,
}: Pick<Props<T>, 'columns' | 'order'> & { onOrder: (order: string) => void }) {
  const { t } = useTranslation('components');
  const data = columns.flatMap(({ orderBy, label: name }) =>
    orderBy === undefined
      ? []
      : [
          { value: orderBy, label: t('table.ascending', { name }) },
          { value: `-${orderBy}`, label: t('table.descending', { name }) },
        ],
  );
  return (
    <NativeSelect
      className={classes.orderField ?? ''}
      size="xs"
      aria-label={t('table.order')}
      data={data}
      value={order ?? ''}
      onChange={(event) => onOrder(event.currentTarget.value)}
    />
  );
}

function moveFocus(event: KeyboardEvent<HTMLDivElement>): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest('input, textarea, [contenteditable]')) return;
  const row = target.closest<HTMLElement>('[data-row]');
  if (event.key === 'x' && row !== null) {
    row.querySelector<HTMLInputElement>('input[type=checkbox]')?.click();
    return;
  }
  if (event.key !== 'j' && event.key !== 'k') return;
  const sibling = event.key === 'j' ? row?.nextElementSibling : row?.previousElementSibling;
  sibling?.querySelector<HTMLElement>('a')?.focus();
}

interface RowProps {
  index: number;
  start: number;
  row: unknown;
  columns: readonly Column<unknown>[];
  id: string;
  name: string;
  /** Null where there is nothing to select. */
  isSelected: boolean | null;
  hasSelection: boolean;
  onToggle: (id: string, isSelected: boolean) => void;
  measure: (element: HTMLElement | null) => void;
}

/** A row. It is drawn again only when its own data change, not for each step of scrolling. */
const DataRow = memo(function DataRow({
  index,
  start,
  row,
  columns,
  id,
  name,
  isSelected,
  hasSelection,
  onToggle,
  measure,
}: RowProps) {
  const { t } = useTranslation('components');
  return (
    <div
      role="row"
      data-row
      data-index={index}
      ref={measure}
      aria-rowindex={index + 2}
      className={classes.row}
      style={{ transform: `translateY(${start}px)` }}
    >
      {hasSelection && (
        <span role="cell" className={classes.check}>
          {isSelected !== null && (
            <input
              type="checkbox"
              className={classes.box}
              aria-label={t('table.selectRow', { name })}
              checked={isSelected}
              onChange={(event) => onToggle(id, event.currentTarget.checked)}
            />
          )}
        </span>
      )}
      {columns.map((column) => (
        <span key={column.id} role="cell" data-secondary={column.isSecondary} className={classes.cell}>
          {row === undefined ? <span className={classes.blank} /> : column.cell(row)}
        </span>
      ))}
    </div>
  );
});

/**
 * A list of which only the rows on screen are in the document, and only their pages fetched.
 *
 * In a row, `j` and `k` go to the next and previous one, `x` selects it.
 */
export function DataTable<T>({ label, columns, pages, idOf, nameOf, order, onOrder, selection }: Props<T>) {
  const { t } = useTranslation('components');
  const body = useRef<HTMLDivElement>(null);
  const [offset, setOffset] = useState(0);
  const total = pages.total ?? 0;
  useLayoutEffect(() => {
    setOffset(body.current === null ? 0 : body.current.getBoundingClientRect().top + window.scrollY);
  }, []);
  const virtualizer = useWindowVirtualizer({
    count: total,
    estimateSize: () => rowHeight,
    overscan: 8,
    scrollMargin: offset,
    initialRect: { width: 1024, height: 768 },
  });
  const items = virtualizer.getVirtualItems();
  const first = items[0]?.index ?? 0;
  const last = items.at(-1)?.index ?? 0;
  const { showRange } = pages;
  useEffect(() => showRange(first, last), [first, last, showRange]);

  const loaded = items.map((item) => pages.rowAt(item.index)).filter((row): row is T & {} => row !== undefined);
  const template = [...(selection ? ['36px'] : []), ...columns.map((column) => column.width)].join(' ');
  const latest = useRef(selection);
  latest.current = selection;
  const onToggle = useCallback((id: string, isSelected: boolean) => {
    const ids = new Set(latest.current?.ids);
    if (isSelected) ids.add(id);
    else ids.delete(id);
    latest.current?.change(ids);
  }, []);
  const isSelectable = (row: T) => selection?.isSelectable?.(row) ?? true;
  const selectable = loaded.filter(isSelectable);
  const selectedHere = selectable.filter((row) => selection?.ids.has(idOf(row))).length;
  return (
    <div className={classes.frame}>
      {onOrder && <OrderField columns={columns} onOrder={onOrder} {...(order ? { order } : {})} />}
      <div
        role="table"
        aria-label={label}
        aria-rowcount={total + 1}
        aria-busy={pages.isFetching}
        className={classes.table}
        style={{ '--template': template } as CSSProperties}
        onKeyDown={moveFocus}
      >
        <div role="rowgroup" className={classes.head}>
          <div role="row" aria-rowindex={1} className={classes.row}>
            {selection && (
              <span role="columnheader" className={classes.check}>
                <input
                  type="checkbox"
                  className={classes.box}
                  aria-label={t('table.selectAll')}
                  checked={selectable.length > 0 && selectedHere === selectable.length}
                  ref={(element) => {
                    if (element !== null) element.indeterminate = selectedHere > 0 && selectedHere < selectable.length;
                  }}
                  onChange={(event) =>
                    selection.change(new Set(event.currentTarget.checked ? selectable.map((row) => idOf(row)) : []))
                  }
                />
                <span className={classes.forNarrow}>{t('table.selectAll')}</span>
              </span>
            )}
            {columns.map((column) => (
              <span
                key={column.id}
                role="columnheader"
                aria-sort={sortOf(order, column.orderBy)}
                data-secondary={column.isSecondary}
              >
                {column.orderBy && onOrder ? (
                  <OrderButton
                    label={column.label}
                    field={column.orderBy}
                    onOrder={onOrder}
                    {...(order ? { order } : {})}
                  />
                ) : (
                  column.label
                )}
              </span>
            ))}
          </div>
          {pages.isFetching && <div className={classes.bar} />}
        </div>
        <div role="rowgroup" ref={body} className={classes.body} style={{ height: virtualizer.getTotalSize() }}>
          {items.map((item) => {
            const row = pages.rowAt(item.index);
            return (
              <DataRow
                key={item.key}
                index={item.index}
                start={item.start - offset}
                row={row}
                columns={columns as readonly Column<unknown>[]}
                id={row === undefined ? '' : idOf(row)}
                name={row === undefined ? '' : nameOf(row)}
                isSelected={
                  selection === undefined || row === undefined || !isSelectable(row)
                    ? null
                    : selection.ids.has(idOf(row))
                }
                hasSelection={selection !== undefined}
                onToggle={onToggle}
                measure={virtualizer.measureElement}
              />
            );
          })}
        </div>
      </div>
    </div>
  );
}

function sortOf(order: string | undefined, field: string | undefined): 'ascending' | 'descending' | undefined {
  if (field === undefined) return undefined;
  if (order === field) return 'ascending';
  return order === `-${field}` ? 'descending' : undefined;
}
