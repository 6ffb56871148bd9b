import {
  ActionIcon,
  AppShell,
  Burger,
  Button,
  Group,
  Kbd,
  Menu,
  NavLink,
  Text,
  useMantineColorScheme,
} from '@mantine/core';
import { useDisclosure, useHotkeys } from '@mantine/hooks';
import {
  IconDeviceDesktop,
  IconLanguage,
  IconLogout,
  IconMoon,
  IconSearch,
  IconSun,
  IconUserCircle,
} from '@tabler/icons-react';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { Link, Outlet, useLocation, useNavigate } from '@tanstack/react-router';
import { useEffect, useRef } from 'react';
import { useTranslation } from 'react-i18next';
import { boot } from '../api/boot';
import { signOut } from '../api/login';
import { useMe, useRole } from '../api/me';
import { forgetPerson } from '../api/personal';
import { asProblem } from '../api/problems';
import { useLive } from '../api/useLive';
import { Confirm } from '../components/Confirm';
import { changeLanguage, type Language, languages } from '../i18n';
import { Banners } from './Banners';
import { ExpiredDialog } from './ExpiredDialog';
import { type Destination, destinationOf, destinationsFor } from './navigation';
import { openPalette, Palette } from './Palette';
import { ProofDialog } from './ProofDialog';
import classes from './Shell.module.css';

const groups = ['work', 'administration'] as const;
const schemes = [
  ['light', IconSun],
  ['dark', IconMoon],
  ['auto', IconDeviceDesktop],
] as const;

function Navigation({ destinations, onGo }: { destinations: Destination[]; onGo: () => void }) {
  const { t } = useTranslation('app');
  const { pathname } = useLocation();
  return groups.map((group) => {
    const members = destinations.filter((destination) => destination.group === group);
    if (members.length === 0) return null;
    return (
      <div key={group} className={classes.group}>
        <Text component="h2" size="xs" c="dimmed" fw={600} px="sm" pb={4}>
          {t(`nav.${group}`)}
        </Text>
        {members.map(({ path, label, icon: Icon }) => {
          const isHere = destinationOf(pathname)?.path === path;
          return (
            <NavLink
              key={path}
              component={Link}
              to={path}
              activeOptions={{ exact: true }}
              label={t(`nav.${label}`)}
              leftSection={<Icon size={18} aria-hidden />}
              active={isHere}
              aria-current={isHere ? 'page' : undefined}
              className={classes.link ?? ''}
              onClick={onGo}
            />
          );
        })}
      </div>
    );
  });
}

function PersonMenu() {
  const { t, i18n } = useTranslation('app');
  const { data } = useMe();
  const navigate = useNavigate();
  const client = useQueryClient();
  const { colorScheme, setColorScheme } = useMantineColorScheme();
  const leave = useMutation({
    mutationFn: async (everywhere: boolean) => {
      try {
        await signOut(everywhere);
      } catch (error) {
        if (asProblem(error).status !== 401) throw error; // the login has ended already
      }
    },
    onSuccess: async () => {
      forgetPerson();
      client.clear();
      await navigate({ to: '/login', search: {} });
    },
  });
  return (
    <>
      <Menu position="bottom-end" width={240}>
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" size="lg" aria-label={t('person.menu')}>
            <IconUserCircle size={22} aria-hidden />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Label c="dimmed">{data?.user?.email ?? ''}</Menu.Label>
          <Menu.Item component={Link} to="/account">
            {t('nav.account')}
          </Menu.Item>
          <Menu.Divider />
          <Menu.Label c="dimmed">{t('scheme.title')}</Menu.Label>
          {schemes.map(([scheme, Icon]) => (
            <Menu.Item
              key={scheme}
              leftSection={<Icon size={16} aria-hidden />}
              {...(colorScheme === scheme ? { fw: 700, 'aria-current': 'true' as const } : {})}
              onClick={() => setColorScheme(scheme)}
            >
              {t(`scheme.${scheme}`)}
            </Menu.Item>
          ))}
          <Menu.Divider />
          {Object.entries(languages).map(([language, name]) => (
            <Menu.Item
              key={language}
              lang={language}
              leftSection={<IconLanguage size={16} aria-hidden />}
              {...(i18n.language === language ? { fw: 700, 'aria-current': 'true' as const } : {})}
              onClick={() => void changeLanguage(language as Language)}
            >
              {name}
            </Menu.Item>
          ))}
          <Menu.Divider />
          <Menu.Item leftSection={<IconLogout size={16} aria-hidden />} onClick={() => leave.mutate(false)}>
            {t('person.logout')}
          </Menu.Item>
          <Menu.Item onClick={() => leave.mutate(true)}>{t('person.logoutEverywhere')}</Menu.Item>
        </Menu.Dropdown>
      </Menu>
      <Confirm
        isOpen={leave.isError}
        title={t('person.stillIn')}
        action={t(leave.variables ? 'person.logoutEverywhere' : 'person.logout')}
        isDangerous={false}
        error={leave.error}
        onConfirm={() => leave.mutate(leave.variables ?? false)}
        onClose={() => leave.reset()}
      >
        <Text>{t(leave.variables ? 'person.stillInEverywhere' : 'person.stillInHere')}</Text>
      </Confirm>
    </>
  );
}

/** Goes to a page by `g` and its key, unless a field has the focus. */
function useGoKeys(destinations: Destination[]): void {
  const navigate = useNavigate();
  const goAt = useRef(0);
  useHotkeys([
    [
      'g',
      () => {
        goAt.current = Date.now();
      },
    ],
    ...destinations.flatMap(({ path, shortcut }): [string, () => void][] =>
      shortcut
        ? [
            [
              shortcut,
              () => {
                if (Date.now() - goAt.current < 1500) void navigate({ to: path });
              },
            ],
          ]
        : [],
    ),
  ]);
}

/** The frame around every page: header, navigation, banners, the palette, and the dialog of an expired login. */
export function Shell() {
  const { t } = useTranslation('app');
  const [isOpen, { toggle, close }] = useDisclosure(false);
  const role = useRole();
  const destinations = destinationsFor(role);
  const { pathname } = useLocation();
  const lastPath = useRef(pathname);
  useLive();
  useGoKeys(destinations);
  useEffect(() => {
    // Screen readers hear the heading of the page that a link led to.
    if (lastPath.current === pathname) return;
    lastPath.current = pathname;
    document.getElementById('page-title')?.focus({ preventScroll: true });
  }, [pathname]);
  return (
    <AppShell
      header={{ height: 52 }}
      navbar={{ width: 216, breakpoint: 'sm', collapsed: { mobile: !isOpen } }}
      padding={{ base: 'sm', sm: 'lg' }}
    >
      <button type="button" className="skip-link" onClick={() => document.getElementById('content')?.focus()}>
        {t('skip')}
      </button>
      <AppShell.Header className={classes.header ?? ''}>
        <Group h="100%" px="md" justify="space-between" wrap="nowrap">
          <Group gap="xs" wrap="nowrap">
            <Burger opened={isOpen} onClick={toggle} hiddenFrom="sm" size="sm" aria-label={t('nav.toggle')} />
            <Link to="/" className={classes.brand ?? ''}>
              {boot.siteName}
            </Link>
          </Group>
          <Group gap="xs" wrap="nowrap">
            <Button
              variant="default"
              size="xs"
              onClick={openPalette}
              leftSection={<IconSearch size={14} aria-hidden />}
              visibleFrom="xs"
              rightSection={<Kbd size="xs">Ctrl K</Kbd>}
            >
              {t('palette.open')}
            </Button>
            <ActionIcon
              variant="default"
              size="lg"
              hiddenFrom="xs"
              onClick={openPalette}
              aria-label={t('palette.open')}
            >
              <IconSearch size={18} aria-hidden />
            </ActionIcon>
            <PersonMenu />
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar p="xs" className={classes.navbar ?? ''} aria-label={t('nav.label')}>
        <Navigation destinations={destinations} onGo={close} />
      </AppShell.Navbar>
      <AppShell.Main id="content" tabIndex={-1} className={classes.main ?? ''}>
        <Banners />
        <Outlet />
      </AppShell.Main>
      <Palette destinations={destinations} />
      <ProofDialog />
      <ExpiredDialog />
    </AppShell>
  );
}
