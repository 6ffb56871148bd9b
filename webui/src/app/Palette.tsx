import { Spotlight, type SpotlightActionData, spotlight } from '@mantine/spotlight';
import { IconSearch, IconStack2 } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { dataOf, rest } from '../api/client';
import type { Destination } from './navigation';

export const openPalette = (): void => spotlight.open();

const minLength = 2;

/** Finds pages by their names, and sessions by the beginning of their name or id, which the server looks up. */
export function Palette({ destinations }: { destinations: Destination[] }) {
  const { t } = useTranslation('app');
  const navigate = useNavigate();
  const [text, setText] = useState('');
  const word = text.trim();
  const sessions = useQuery({
    queryKey: ['palette', word],
    queryFn: ({ signal }) => dataOf(rest.GET('/session/_/match', { params: { query: { id: word } }, signal })),
    enabled: word.length >= minLength && word.length <= 64,
    placeholderData: keepPreviousData,
    staleTime: 10_000,
  });
  const pages: SpotlightActionData[] = destinations
    .map(({ path, label, icon: Icon }) => ({
      id: path,
      label: t(`nav.${label}`),
      leftSection: <Icon size={18} aria-hidden />,
      onClick: () => void navigate({ to: path }),
    }))
    .filter(({ label }) => label.toLowerCase().includes(word.toLowerCase()));
  const matches: SpotlightActionData[] = (word.length >= minLength ? (sessions.data?.matches ?? []) : [])
    .slice(0, 10)
    .map((match) => ({
      id: match.id,
      label: match.name,
      description: match.status,
      leftSection: <IconStack2 size={18} aria-hidden />,
      onClick: () => void navigate({ to: '/sessions/$id', params: { id: match.id } }),
    }));
  return (
    <Spotlight
      shortcut={['mod + K']}
      query={text}
      onQueryChange={setText}
      filter={(_, actions) => actions}
      actions={[
        ...(pages.length > 0 ? [{ group: t('palette.pages'), actions: pages }] : []),
        ...(matches.length > 0 ? [{ group: t('nav.sessions'), actions: matches }] : []),
      ]}
      nothingFound={t('palette.nothing')}
      searchProps={{
        leftSection: <IconSearch size={18} aria-hidden />,
        placeholder: t('palette.placeholder'),
        'aria-label': t('palette.placeholder'),
      }}
      scrollable
      maxHeight={420}
    />
  );
}
